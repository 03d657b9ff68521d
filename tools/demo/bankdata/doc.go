// Package bankdata makes the demo's bank: the databases of its three services, filled by SQL, and one for those who
// compose statements. It breaks and repairs accounts, and reads the books that statements are held against.
//
// A bank of a size is always the same. It is made up and gone soon: its tables are unlogged.
//
// Concurrency: a [Bank] is for one caller at a time.
package bankdata
