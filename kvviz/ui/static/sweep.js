function buildSweep() { return []; }
function buildSteps() { return []; }
