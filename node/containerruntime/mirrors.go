package containerruntime

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/reference"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// mirrors says where images are fetched from. What cannot be asked as registries.yaml says keeps
// no node from starting: images of other registries are had all the same.
func (c Config) mirrors() error {
	others, err := registries.Write(c.RegistryConfigDir, c.Registries.Hosts())
	if err != nil {
		return fmt.Errorf("registries: %w", err)
	}
	for _, dir := range others {
		c.Log.Warn("a registry is not asked as registries.yaml says, because this directory has a hosts.toml of its own", "dir", dir)
	}
	for registry, again := range c.Registries.Duplicates() {
		c.Log.Warn("skip endpoints that registries.yaml has more than once", "registry", registry, "endpoints", again)
	}
	for _, err := range c.Registries.CheckFiles() {
		c.Log.Warn("no image is pulled from a registry, or by way of it, until its file is right", "err", err)
	}
	return nil
}

// registryHosts are the hosts that are asked for an image, in turn, with the credentials of the
// pull's pod or of registries.yaml, and each by the name that the image has there.
func (c Config) registryHosts(ctx context.Context, pull *cri.PullImageRequest, image, registry string) ([]docker.RegistryHost, error) {
	var asked []string // before anybody wants credentials
	var from string    // the directory that says where the image is
	hosts, err := config.ConfigureHosts(ctx, config.HostOptions{
		HostDir: func(name string) (dir string, err error) {
			from, err = config.HostDirFromRoot(c.RegistryConfigDir)(name)
			return from, err
		},
		Credentials: func(host string) (user, secret string, err error) {
			if pull.Auth == nil {
				return c.Registries.Credentials(host)
			}
			return credentialsFor(pull.Auth, asked, host)
		},
		UpdateClient: func(client *http.Client) error { client.Transport = boundedRegistries(client.Transport); return nil },
	})(registry)
	for _, h := range hosts {
		asked = append(asked, h.Host)
	}
	if from == "" || !registries.Made(from) {
		return hosts, err
	}
	if err != nil {
		if why := c.Registries.CheckFilesOf(registry); why != nil {
			return nil, why // containerd does not say who names the file
		}
		return nil, err
	}
	name, err := reference.Parse(image)
	if err != nil {
		return nil, err
	}
	return c.Registries.Renamed(registry, strings.TrimPrefix(name.Locator, registry+"/"), hosts), nil
}
