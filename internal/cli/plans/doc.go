// Package plans has the commands about plans on record.
package plans
