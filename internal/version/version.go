// Package version says what this program is. It reads nothing; the build
// writes Version and Commit with -ldflags -X.
package version

// Version is knarr's own version.
var Version = "dev"

// Commit is the revision the program was built from.
var Commit = "unknown"

// Kubernetes is the release whose behaviour and API this program has.
const Kubernetes = "v1.36.3"
