package connect

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/request"
)

// decodeQuery reads the options of a connection from the query.
func (c *connection) decodeQuery(opts runtime.Object) error {
	p := request.Params{Values: c.r.URL.Query()}
	switch o := opts.(type) {
	case *corev1.PodLogOptions:
		o.Container = p.Get("container")
		o.Follow, o.Previous, o.Timestamps = p.Is("follow"), p.Is("previous"), p.Is("timestamps")
		o.InsecureSkipTLSVerifyBackend = p.Is("insecureSkipTLSVerifyBackend")
		o.SinceSeconds, o.TailLines, o.LimitBytes = p.Int64("sinceSeconds"), p.Int64("tailLines"), p.Int64("limitBytes")
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
		o.Stdin, o.Stdout, o.Stderr, o.TTY = p.Is("stdin"), p.Is("stdout"), p.Is("stderr"), p.Is("tty")
		o.Container, o.Command = p.Get("container"), p.Values["command"]
	case *corev1.PodAttachOptions:
		o.Stdin, o.TTY = p.Is("stdin"), p.Is("tty")
		// Output is wanted unless it is refused.
		out, errs := p.Bool("stdout"), p.Bool("stderr")
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
	return p.Err
}
