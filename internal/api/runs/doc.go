// Package runs is the routes that show runs: lists and documents, items and results, why a run is not done, its
// history, and what pages follow it with. Nothing here changes a run but for notes; see packages starts and changes.
package runs
