// Package collectors has the commands about collectors.
package collectors
