package plane

// NoStep stands for the step of a missing item.
const NoStep = -1
