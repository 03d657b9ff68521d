// Package sorting orders the rows of an input by the values of a field: numbers before other texts, and what is missing
// last. Rows of the same value stay as they came.
//
// 32 MiB of rows are kept in memory. What is more goes to a file of package spool, in sorted parts that are merged. All
// rows are read before the first is handed out. A Sorter belongs to one goroutine.
package sorting
