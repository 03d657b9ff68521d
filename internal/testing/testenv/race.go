//go:build race

package testenv

// Race reports whether the race detector is on, which makes computations ten times as slow.
const Race = true
