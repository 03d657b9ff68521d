// Package parquet reads the rows of a Parquet file as items.
//
// parquet-go decodes the metadata and the values. Pages and rows are read here, since nothing of a file can be
// believed, and parquet-go's reader inflates a page as far as it goes, allocates what a page claims, and reads other
// values than some writers wrote: tests have such files. So each page is inflated into a buffer of the size that its
// header says, within bounds, and what it claims is checked before it is decoded. A page of each column is held. An
// invalid file is an error and never a panic.
//
// Package intake says what each type becomes. It uses row and jsonvalue, and an io.ReaderAt. A Reader belongs to one
// goroutine.
package parquet
