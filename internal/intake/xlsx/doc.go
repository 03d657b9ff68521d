// Package xlsx reads the first sheet of a workbook that is a flat export given back, and knows what a cell can hold.
//
// The library says what stands in cells as texts. What type and format a cell has, it tells only of a sheet that is in
// memory as a whole; so both are read from the sheet beside it, a row at a time. A row is an object of what its cells
// show: a number or truth as such, a date or time as a text by ISO 8601, anything else as its text. What has no such
// form is refused with its cell. Whatever is wrong with a workbook, there is an error and never a panic.
//
// It uses row and jsonvalue. A Reader belongs to one goroutine.
package xlsx
