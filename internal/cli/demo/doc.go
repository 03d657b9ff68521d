// Package demo has the command that tells the demo's story, and the services that it starts.
package demo
