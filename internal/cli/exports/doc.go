// Package exports has the command that writes the items of a run with their outcomes, in one file or in one for each.
package exports
