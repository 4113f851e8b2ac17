function buildKept() { return []; }
