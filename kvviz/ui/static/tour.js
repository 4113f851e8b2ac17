function buildTour() { return null; }
