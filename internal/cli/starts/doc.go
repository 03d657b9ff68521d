// Package starts has the commands that start runs, or open them and give them items. It waits for a run as package runs
// does.
package starts
