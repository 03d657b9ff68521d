//go:build !race

package testenv

// Race says that the race detector is on: what computes takes ten times as long.
const Race = false
