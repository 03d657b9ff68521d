// Package runs has the commands that show runs and follow them, and how a command that sets one going waits for it.
package runs
