//go:build cgo

package main

import (
	"os"
	"runtime"

	_ "github.com/opencontainers/cgroups/devices" // control groups for devices
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // enters namespaces before Go begins
)

// The first process of a container is this program, until it becomes the user's.
// That begins before main, as little of Go as there can be.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		libcontainer.Init()
	}
	// libcontainer has threads enter the namespaces of containers and end there.
	// The first thread cannot end, and /proc/self shows its namespaces: so it runs
	// the function main alone, which only waits.
	runtime.LockOSThread()
}
