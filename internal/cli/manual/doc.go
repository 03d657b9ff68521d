// Package manual is what the command line says of itself: help, completion, and the man pages.
package manual
