// Package version says what this program is. It reads nothing; the build
// writes Version and Commit with -ldflags -X.
package version

import "runtime"

// Version is knarr's own version.
var Version = "dev"

// Commit is the revision the program was built from.
var Commit = "unknown"

// Kubernetes is the release whose behaviour and API this program has.
const Kubernetes = "v1.36.3"

// UserAgent is what a program of upstream's name says it is when it asks as
// who. Its first word is the manager of the fields that it writes.
func UserAgent(program, who string) string {
	return program + "/" + Kubernetes + " (" + runtime.GOOS + "/" + runtime.GOARCH + ") knarr/" + Version + " (" + who + ")"
}
