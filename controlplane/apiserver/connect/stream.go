package connect

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/streaming/pkg/httpstream"
)

// needsCreate asks for the right to create the subresource when the request was
// authorised as something else: a WebSocket begins with a GET, and a user who may only
// read may not run commands. Upstream's
// AuthorizePodWebsocketUpgradeCreatePermission.
func (c *connection) needsCreate() error {
	if c.info.Verb == "create" || c.s.cfg.Allows == nil {
		return nil
	}
	allowed, reason, err := c.s.cfg.Allows(c.ctx, "create")
	if err != nil {
		return err
	}
	if !allowed {
		return apierrors.NewForbidden(c.info.GroupResource(), c.info.Name, errors.New(reason))
	}
	return nil
}

// podStream relays exec, attach and portforward to the kubelet.
func (c *connection) podStream(action string, opts runtime.Object) error {
	if c.r.Method != http.MethodGet && c.r.Method != http.MethodPost {
		return ErrMethod
	}
	if err := c.admit(opts); err != nil {
		return err
	}
	if err := c.needsCreate(); err != nil {
		return err
	}
	pod, err := c.pod(c.info.Name)
	if err != nil {
		return err
	}
	q, path := url.Values{}, []string{"", action, pod.Namespace, pod.Name}
	set := func(key string, on bool) {
		if on {
			q.Set(key, "1")
		}
	}
	container, named := "", true
	switch o := opts.(type) {
	case *corev1.PodExecOptions:
		set("input", o.Stdin)
		set("output", o.Stdout)
		set("error", o.Stderr)
		set("tty", o.TTY)
		q["command"] = o.Command
		container = o.Container
	case *corev1.PodAttachOptions:
		set("input", o.Stdin)
		set("output", o.Stdout)
		set("error", o.Stderr)
		set("tty", o.TTY)
		container = o.Container
	case *corev1.PodPortForwardOptions:
		named = false
		for _, p := range o.Ports {
			q.Add("port", strconv.Itoa(int(p)))
		}
	}
	if named {
		if container, err = chooseContainer(pod, container); err != nil {
			return err
		}
		path = append(path, container)
	}
	if pod.Spec.NodeName == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	if !httpstream.IsUpgradeRequest(c.r) || c.r.Header.Get("Upgrade") == "" {
		return apierrors.NewBadRequest("Upgrade request required")
	}
	to, err := c.kubelet(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	to.target.Path, to.target.RawQuery = strings.Join(path, "/"), q.Encode()
	to.failure = func(err error) error {
		return apierrors.NewInternalError(fmt.Errorf("error dialing backend: %w", err))
	}
	to.serve(c)
	return nil
}

// chooseContainer is the container meant by name, or the only one.
func chooseContainer(pod *corev1.Pod, name string) (string, error) {
	var names, inits, all []string
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.InitContainers {
		inits = append(inits, pod.Spec.InitContainers[i].Name)
	}
	all = append(append(all, names...), inits...)
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, pod.Spec.EphemeralContainers[i].Name)
	}
	if name != "" {
		if !slices.Contains(all, name) {
			return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
		}
		return name, nil
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	}
	text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name, strings.Join(names, " "))
	if len(inits) > 0 {
		text += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(inits, " "))
	}
	return "", apierrors.NewBadRequest(text)
}
