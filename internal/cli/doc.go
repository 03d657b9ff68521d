// Package cli holds what commands share: the console, tables and text, input files, and how mistakes end. Below it,
// package runs has the commands about runs, and package admin all others, a file for each noun. cmd/tranche puts them
// together.
//
// kong calls the Validate of the command that was chosen, and then its Run, with the console and, if it asks for one, a
// client of the API.
package cli
