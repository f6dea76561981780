//go:build !cgo

package shim

import (
	"errors"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// libcontainer enters namespaces in C: without it there are no containers. Only
// linters and tests of what needs none see this.
func toConfig(string, *options.Options, *specs.Spec) (*configs.Config, error) {
	return nil, errors.New("this program was built without cgo")
}

func known(*features.Features) {}
