// Package starts is the routes that start runs and give them items: in one go, in parts, from a query, a stream or an
// earlier run; to try a start, and to look at a file before it. Schedules start theirs by the same way.
package starts
