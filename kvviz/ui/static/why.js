function buildWhy() { return []; }
