// Package changes is the routes that change runs there are: pause, resume, approve and cancel them, set them, run items
// again, take steps back, correct and accept items, and delete a run.
package changes
