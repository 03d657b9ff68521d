// Package cli holds what commands share: the console, tables and text, input files, and how mistakes end. Each room
// below it has the commands about one noun, and knows no other; cmd/tranche puts them together.
package cli
