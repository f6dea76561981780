package containerruntime

import (
	"context"
	"fmt"

	"knarr/internal/run"
	"knarr/node/containerruntime/registries"
)

// mirrors says where images are fetched from, and serves what is to be asked by another
// name, until stop is called.
func (c Config) mirrors(ctx context.Context) (stop func(), err error) {
	rewriter, err := registries.NewRewriter(c.Registries)
	if err != nil {
		return nil, fmt.Errorf("registries: %w", err)
	}
	others, err := registries.Write(c.RegistryConfigDir, c.Registries.Hosts(rewriter.At))
	if err != nil {
		return nil, fmt.Errorf("registries: %w", err)
	}
	for _, dir := range others {
		c.Log.Warn("a registry is not asked as registries.yaml says, because this directory has a hosts.toml of its own", "dir", dir)
	}
	if rewriter == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg run.Group
	wg.Go("registry mirrors", func() { rewriter.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}, nil
}
