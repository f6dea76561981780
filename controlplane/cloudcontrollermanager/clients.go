package cloudcontrollermanager

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/leader"
)

// clients gives a provider ways to the API server, each as a service account.
type clients struct {
	as func(serviceAccount string) *rest.Config
}

func (c clients) Config(name string) (*rest.Config, error) {
	return c.ConfigOrDie(name), nil
}

// ConfigOrDie never fails.
func (c clients) ConfigOrDie(name string) *rest.Config {
	return rest.AddUserAgent(leader.Fenced(c.as(name)), name)
}

func (c clients) Client(name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(c.ConfigOrDie(name))
}

// ClientOrDie panics, which ends the controllers and no other component.
func (c clients) ClientOrDie(name string) kubernetes.Interface {
	client, err := c.Client(name)
	if err != nil {
		panic(err)
	}
	return client
}
