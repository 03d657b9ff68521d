// Package collectors is the routes of collectors and of the operations that they are given.
package collectors
