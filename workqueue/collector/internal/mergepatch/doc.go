// Package mergepatch merges JSON values as JSON Merge Patch (RFC 7396) does, for what is folded before it is flushed.
// It is without I/O.
package mergepatch
