// Package runs has the commands that start, watch, repair and export runs.
package runs
