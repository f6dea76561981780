package controllermanager

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// backend is a pod with an address, ready.
func (c *cluster) backend(i int) {
	c.Helper()
	name := fmt.Sprint("p", i)
	c.create(core+"pods", "{metadata: {name: "+name+", labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, image: a, ports: [{name: http, containerPort: 8080}]}]}}")
	c.address(name, fmt.Sprint("10.42.0.", i))
}

// address gives a pod an address, and makes it ready.
func (c *cluster) address(name, ip string) {
	c.Helper()
	p, err := c.client.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
	c.no(err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}}
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, p, metav1.UpdateOptions{})
	c.no(err)
}

const webService = "{metadata: {name: web}, spec: {clusterIP: 10.43.0.80, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}}"

// serve is the story of a Service and its pods.
func serve() []func(*cluster) {
	return []func(*cluster){
		func(c *cluster) {
			c.create(core+"services", webService)
			c.backend(1)
			c.backend(2)
		},
		func(c *cluster) { c.address("p1", "10.42.0.9") },
		func(c *cluster) { c.kill("p2"); c.backend(3) },
		func(c *cluster) { c.kill("p3"); c.backend(3); c.address("p3", "10.42.0.8") },
		func(c *cluster) {
			c.merge(core+"services/web", `{"spec":{"ports":[{"name":"http","port":80,"targetPort":"http"},{"name":"more","port":81,"targetPort":8081}]}}`)
		},
	}
}

var serviceScenarios = []scenario{
	{name: "endpoints", of: []string{"endpoints-controller"}, with: collected, steps: serve(), recreates: true, anew: core + "services/web"},
	{name: "endpointslices", of: []string{"endpointslice-controller"}, with: collected, steps: serve(), recreates: true, anew: core + "services/web"},
	{
		name: "endpointslices of a Service that is deleted", of: []string{"endpointslice-controller"}, with: []string{"endpoints-controller", "garbage-collector-controller"}, inOrder: true, recreates: true,
		steps: append(serve()[:2], func(c *cluster) { c.remove(core + "services/web") }),
	},
	{
		name: "endpointslice mirroring", of: []string{"endpointslice-mirroring-controller"}, with: collected, anew: core + "endpoints/db",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"services", "{metadata: {name: db}, spec: {clusterIP: 10.43.0.81, ports: [{port: 5432}]}}")
				c.create(core+"endpoints", "{metadata: {name: db}, subsets: [{addresses: [{ip: 10.1.2.3}], ports: [{port: 5432}]}]}")
			},
			func(c *cluster) {
				c.merge(core+"endpoints/db", `{"subsets":[{"addresses":[{"ip":"10.1.2.3"},{"ip":"10.1.2.4"}],"ports":[{"port":5432}]},{"addresses":[{"ip":"10.1.2.5"}],"ports":[{"port":5433}]}]}`)
			},
			func(c *cluster) {
				c.merge(core+"endpoints/db", `{"subsets":[{"addresses":[{"ip":"10.1.2.4"}],"ports":[{"port":5432}]}]}`)
			},
		},
	},
	{
		name: "service ranges", of: []string{"service-cidr-controller"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create("/apis/networking.k8s.io/v1/servicecidrs", "{metadata: {name: more}, spec: {cidrs: [10.50.0.0/24]}}")
			},
			func(c *cluster) {
				c.create(core+"services", "{metadata: {name: web}, spec: {clusterIP: 10.50.0.9, ports: [{port: 80}]}}")
				c.remove("/apis/networking.k8s.io/v1/servicecidrs/more")
			},
			func(c *cluster) { c.remove(core + "services/web") },
			func(c *cluster) {},
		},
		inOrder: true,
	},
}
