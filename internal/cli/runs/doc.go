// Package runs has the commands that start, watch and repair runs.
package runs
