// Package yearend is an example of what a node is embedded for: a local step that composes an account's year-end
// statement from the answers of three services, as a PDF or, for those who want no paper, as JSON.
//
// [Parts.PDF] draws with vectors and the fonts that every reader of PDF has: a page of about 9 kB in about a
// millisecond. The same parts make the same bytes, in every process. [Read] reads the figures that are printed on a
// page back, for whoever wants to hold them against the bank's books.
//
// Everything here is safe for concurrent use.
package yearend
