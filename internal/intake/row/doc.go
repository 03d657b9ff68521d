// Package row is what all readers of items share: what a row becomes, the rules for names of columns, and what is said
// of a row, or of a whole input, that cannot be read. Whatever of the input an error repeats is quoted and bounded. It
// uses jsonvalue only.
package row
