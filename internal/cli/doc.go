// Package cli holds what commands share: the console, tables and text, input files, and how mistakes end. Each room
// below it has the commands about one noun; runs are four of them, of which starts and changes use runs, and changes
// starts. manual, config and demo are about the program itself. cmd/tranche puts them together.
//
// kong calls the Validate of the command that was chosen, and then its Run, with the console and, if it asks for one, a
// client of the API.
package cli
