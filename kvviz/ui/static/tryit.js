function buildTry() { return []; }
