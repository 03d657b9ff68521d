// Package changes has the commands that change runs and their items: hold, let go and end them, take parts back,
// correct and accept, change settings, delete. It shows what it did, and waits, as package runs does; settings are
// those of package starts.
package changes
