// Package demo has the commands that live on top of the others: the demo's story, and its services.
package demo
