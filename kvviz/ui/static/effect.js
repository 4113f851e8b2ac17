function buildEffect() { return []; }
