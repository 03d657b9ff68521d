// Package operate has tests of what the pages in docs/operate tell those who run Tranche to do, with the real binary
// and real servers: TLS on every way between machines, and a program that is older than the schema.
package operate
