// Package parquet reads the rows of a Parquet file as items.
//
// It is code of ours, since nothing of a file can be believed. parquet-go, which writes exports, inflates a page as far
// as it goes, whatever its header says, and no bound around it reaches there: a test has such a file. Here a value is
// decoded when it is needed, and what is held is a page of each column, within bounds. Whatever is wrong with a file,
// there is an error and never a panic.
//
// Package intake says what each type becomes. It uses row and jsonvalue, and an io.ReaderAt. A Reader belongs to one
// goroutine.
package parquet
