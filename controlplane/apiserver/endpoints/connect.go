package endpoints

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// connection is the subresource that opens a connection to elsewhere.
func connection(name string) func(*call) error {
	switch name {
	case "pods/log":
		return (*call).podLog
	case "pods/exec":
		return func(c *call) error { return c.podStream("exec", &corev1.PodExecOptions{}) }
	case "pods/attach":
		return func(c *call) error { return c.podStream("attach", &corev1.PodAttachOptions{}) }
	case "pods/portforward":
		return func(c *call) error { return c.podStream("portForward", &corev1.PodPortForwardOptions{}) }
	case "pods/proxy":
		return (*call).podProxy
	case "services/proxy":
		return (*call).serviceProxy
	case "nodes/proxy":
		return (*call).nodeProxy
	}
	return nil
}

// connect decodes the options from the query and asks admission.
func (c *call) connect(opts runtime.Object) error {
	if err := c.decodeQuery(opts); err != nil {
		return err
	}
	attrs := c.attributes(Connect, nil, false)
	attrs.Verb, attrs.Object = "connect", opts
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return err
	}
	return c.s.cfg.Admission.Validate(c.ctx, attrs)
}

// decodeQuery reads the options of a connection from the query.
func (c *call) decodeQuery(opts runtime.Object) error {
	p := params{Values: c.query()}
	switch o := opts.(type) {
	case *corev1.PodLogOptions:
		o.Container = p.Get("container")
		o.Follow, o.Previous, o.Timestamps = p.is("follow"), p.is("previous"), p.is("timestamps")
		o.InsecureSkipTLSVerifyBackend = p.is("insecureSkipTLSVerifyBackend")
		o.SinceSeconds, o.TailLines, o.LimitBytes = p.int64("sinceSeconds"), p.int64("tailLines"), p.int64("limitBytes")
		if s := p.Get("sinceTime"); s != "" {
			t, err := time.Parse(time.RFC3339, s)
			if err != nil {
				return apierrors.NewBadRequest(err.Error())
			}
			o.SinceTime = &metav1.Time{Time: t}
		}
		if s := p.Get("stream"); s != "" {
			o.Stream = &s
		}
	case *corev1.PodExecOptions:
		o.Stdin, o.Stdout, o.Stderr, o.TTY = p.is("stdin"), p.is("stdout"), p.is("stderr"), p.is("tty")
		o.Container, o.Command = p.Get("container"), p.Values["command"]
	case *corev1.PodAttachOptions:
		o.Stdin, o.TTY = p.is("stdin"), p.is("tty")
		// Output is wanted unless it is refused.
		out, errs := p.bool("stdout"), p.bool("stderr")
		o.Stdout, o.Stderr = out == nil || *out, errs == nil || *errs
		o.Container = p.Get("container")
	case *corev1.PodPortForwardOptions:
		for _, list := range p.Values["ports"] {
			for text := range strings.SplitSeq(list, ",") {
				n, err := strconv.ParseInt(text, 10, 32)
				if err != nil {
					return apierrors.NewBadRequest(err.Error())
				}
				o.Ports = append(o.Ports, int32(n))
			}
		}
	case *corev1.PodProxyOptions:
		o.Path = p.Get("path")
	case *corev1.NodeProxyOptions:
		o.Path = p.Get("path")
	case *corev1.ServiceProxyOptions:
		o.Path = p.Get("path")
	}
	return p.err
}

// pod is the pod named in the URL.
func (c *call) pod(name string) (*corev1.Pod, error) {
	rec, err := c.store.Get(c.ctx, c.keyOf(c.info.Namespace, name), "")
	if err != nil {
		return nil, c.fromCache(err, name)
	}
	obj, err := rec.Object()
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
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

// kubelet is where the pod's kubelet is reached.
func (c *call) kubelet(node string) (*relay, error) {
	if c.s.cfg.Kubelet == nil {
		return nil, apierrors.NewServiceUnavailable("no connection to kubelets is configured")
	}
	base, transport, err := c.s.cfg.Kubelet(c.ctx, node)
	if err != nil {
		if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return nil, err
		}
		return nil, apierrors.NewInternalError(err)
	}
	return &relay{target: *base, transport: transport}, nil
}

// podLog streams a container's log.
func (c *call) podLog() error {
	opts := &corev1.PodLogOptions{}
	if c.info.Verb != "get" {
		return c.notAllowed()
	}
	if err := c.decodeQuery(opts); err != nil {
		return err
	}
	if errs := checkLogOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.info.Name, errs)
	}
	pod, err := c.pod(c.info.Name)
	if err != nil {
		return err
	}
	container, err := chooseContainer(pod, opts.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	to, err := c.kubelet(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	q := url.Values{}
	for key, on := range map[string]bool{"follow": opts.Follow, "previous": opts.Previous, "timestamps": opts.Timestamps} {
		if on {
			q.Set(key, "true")
		}
	}
	for key, n := range map[string]*int64{"sinceSeconds": opts.SinceSeconds, "tailLines": opts.TailLines, "limitBytes": opts.LimitBytes} {
		if n != nil {
			q.Set(key, strconv.FormatInt(*n, 10))
		}
	}
	if opts.SinceTime != nil {
		q.Set("sinceTime", opts.SinceTime.Format(time.RFC3339))
	}
	if opts.Stream != nil {
		q.Set("stream", *opts.Stream)
	}
	to.target.Path = "/" + strings.Join([]string{"containerLogs", pod.Namespace, pod.Name, container}, "/")
	to.target.RawQuery = q.Encode()
	to.plainText = true
	to.failure = func(err error) error { return apierrors.NewInternalError(err) }
	if isWebSocket(c.r) {
		return to.frames(c)
	}
	to.serve(c)
	return nil
}

func checkLogOptions(opts *corev1.PodLogOptions) (errs field.ErrorList) {
	if n := opts.TailLines; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *n, "must be greater than or equal to 0").WithOrigin("minimum"))
	}
	if n := opts.LimitBytes; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *n, "must be greater than 0").WithOrigin("minimum"))
	}
	switch {
	case opts.SinceSeconds != nil && opts.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case opts.SinceSeconds != nil && *opts.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *opts.SinceSeconds, "must be greater than 0").WithOrigin("minimum"))
	}
	if s := opts.Stream; s != nil {
		known := []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}
		if !slices.Contains(known, *s) {
			errs = append(errs, field.NotSupported(field.NewPath("stream"), *s, known))
		} else if *s != corev1.LogStreamAll && opts.TailLines != nil {
			errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	}
	return errs
}

// podStream relays exec, attach and portforward to the kubelet.
func (c *call) podStream(action string, opts runtime.Object) error {
	if c.r.Method != http.MethodGet && c.r.Method != http.MethodPost {
		return c.notAllowed()
	}
	if err := c.connect(opts); err != nil {
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
	if c.r.Header.Get("Upgrade") == "" {
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
