// Package plane is the arithmetic of items: planes of bits, the graph of steps, what an outcome unlocks, and when to
// try again.
package plane
