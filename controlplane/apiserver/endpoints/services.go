package endpoints

import (
	"context"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

type services struct{}

func newServices(*Config) (*services, error) { return &services{}, nil }

func (*services) beforeWrite(context.Context, *write, registry.Object, registry.Object) (func(), error) {
	return func() {}, nil
}
func (*services) afterDelete(*entry, registry.Object)                     {}
func (*services) afterUpdate(*entry, *watchcache.Record, registry.Object) {}
