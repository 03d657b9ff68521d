// Package trackers has the commands about tracker batches.
package trackers
