// Package exports is the routes that stream what has become of a run: its items in all formats, its errors, its report,
// and how it differs from another.
package exports
