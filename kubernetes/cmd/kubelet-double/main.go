// kubelet-double stands for the kubelets of many nodes, for tests: it has plugins prepare and unprepare claims over their real
// sockets, and starts no containers. It also makes the load: pods with claims, made and deleted at random.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	driver    = "accel.aviary.dev"
	namespace = "default"
	local     = "local"
	retry     = 200 * time.Millisecond
	perCall   = 30 * time.Second
	// hang is longer than a pod waits for room on a busy machine.
	hang = 4 * time.Minute
)

var (
	kubeconfig = flag.String("kubeconfig", "", "")
	nodes      = flag.String("nodes", "", "names, separated by commas")
	folder     = flag.String("folder", "", "has a folder for each node, with plugins in it")
	count      = flag.Int("claims", 100, "claims to make, each with a pod")
	parallel   = flag.Int("parallel", 40, "the most at a time")
	seed       = flag.Int64("seed", 1, "of what is made and how long it lives")
	share      = flag.Int("share", 60, "the largest share of a claim")
	patience   = flag.Duration("patience", 3*time.Second, "the longest that a claim lives beyond what it waits for")
	every      = flag.Bool("every", false, "every claim is prepared before it is deleted")
	where      = flag.String("where", "", "local: claims of devices of the pod's own node; else names of nodes for the pods; empty: anywhere")
)

// double is all kubelets.
type double struct {
	client  kubernetes.Interface
	plugins map[string]drapb.DRAPluginClient
	pods    cache.Indexer
	// working are pods of which a goroutine takes care.
	working  sync.Map
	prepared atomic.Int64
	failed   atomic.Int64
	// never are claims whose pod did not run in the time that it had.
	never atomic.Int64
	nanos atomic.Int64
}

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet-double:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 2000, 4000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	d := &double{client: client, plugins: map[string]drapb.DRAPluginClient{}}
	for _, name := range strings.Split(*nodes, ",") {
		socket := filepath.Join(*folder, name, "plugins", driver, "dra.sock")
		connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		d.plugins[name] = drapb.NewDRAPluginClient(connection)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	d.pods = informer.GetIndexer()
	take := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" {
			return
		}
		if _, busy := d.working.LoadOrStore(pod.UID, true); !busy {
			go d.life(ctx, pod.DeepCopy())
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, object any) { take(object) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	d.load(ctx)
	prepared := d.prepared.Load()
	fmt.Printf("%d prepared, %d attempts failed, %.1f ms a prepare\n", prepared, d.failed.Load(), float64(d.nanos.Load())/float64(max(prepared, 1))/1e6)
	if never := d.never.Load(); never > 0 {
		return fmt.Errorf("%d claims that were not deleted before did not run within %v", never, hang)
	}
	return nil
}

// again does something until it works.
func again(ctx context.Context, what func() error) {
	for ctx.Err() == nil && what() != nil {
		time.Sleep(retry)
	}
}

// deleted says whether a pod is to end.
func (d *double) deleted(pod *corev1.Pod) bool {
	object, there, _ := d.pods.GetByKey(pod.Namespace + "/" + pod.Name)
	if !there {
		return true
	}
	now := object.(*corev1.Pod)
	return now.UID != pod.UID || now.DeletionTimestamp != nil
}

// life is what a kubelet does for a pod.
func (d *double) life(ctx context.Context, pod *corev1.Pod) {
	defer d.working.Delete(pod.UID)
	plugin := d.plugins[pod.Spec.NodeName]
	claim := d.claimOf(ctx, pod)
	if claim == nil || plugin == nil {
		d.end(ctx, pod)
		return
	}
	for !d.deleted(pod) && !d.prepare(ctx, plugin, claim) {
		time.Sleep(retry)
	}
	again(ctx, func() error {
		patch := []byte(`{"status": {"phase": "Running"}}`)
		_, err := d.client.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	for !d.deleted(pod) {
		time.Sleep(retry / 4)
	}
	again(ctx, func() error {
		within, stop := context.WithTimeout(ctx, perCall)
		defer stop()
		answer, err := plugin.NodeUnprepareResources(within, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
		if err != nil {
			return err
		}
		if said := answer.Claims[claim.Uid]; said == nil || said.Error != "" {
			return fmt.Errorf("%v", said)
		}
		return nil
	})
	d.end(ctx, pod)
}

func (d *double) claimOf(ctx context.Context, pod *corev1.Pod) *drapb.Claim {
	var found *drapb.Claim
	again(ctx, func() error {
		claim, err := d.client.ResourceV1().ResourceClaims(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			found = &drapb.Claim{Namespace: namespace, Name: claim.Name, Uid: string(claim.UID)}
		}
		return err
	})
	return found
}

func (d *double) prepare(ctx context.Context, plugin drapb.DRAPluginClient, claim *drapb.Claim) bool {
	within, stop := context.WithTimeout(ctx, perCall)
	defer stop()
	began := time.Now()
	answer, err := plugin.NodePrepareResources(within, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err == nil && answer.Claims[claim.Uid] != nil && answer.Claims[claim.Uid].Error == "" {
		d.prepared.Add(1)
		d.nanos.Add(int64(time.Since(began)))
		return true
	}
	d.failed.Add(1)
	return false
}

// end is what a kubelet does last.
func (d *double) end(ctx context.Context, pod *corev1.Pod) {
	now := int64(0)
	again(ctx, func() error {
		err := d.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now,
			Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	})
}

// load makes claims with pods, waits a random time, or until they run, and deletes them.
func (d *double) load(ctx context.Context) {
	random := rand.New(rand.NewSource(*seed))
	room := make(chan bool, *parallel)
	var all sync.WaitGroup
	began := time.Now()
	for number := range *count {
		room <- true
		part, patience := 1+random.Intn(*share), time.Duration(random.Int63n(max(int64(*patience), 1)))
		waits := random.Intn(4) > 0 || *every
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() { <-room }()
			d.one(ctx, fmt.Sprintf("load-%d", number), part, patience, waits)
		}()
		if number%500 == 499 {
			fmt.Printf("%d made in %.0f s, %d prepared, %d attempts failed\n", number+1, time.Since(began).Seconds(), d.prepared.Load(), d.failed.Load())
		}
	}
	all.Wait()
	fmt.Printf("%d made and deleted in %.1f s, %d never ran\n", *count, time.Since(began).Seconds(), d.never.Load())
}

func (d *double) one(ctx context.Context, name string, part int, patience time.Duration, waits bool) {
	claims, pods := d.client.ResourceV1().ResourceClaims(namespace), d.client.CoreV1().Pods(namespace)
	create := func(make func() error) {
		again(ctx, func() error {
			if err := make(); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	create(func() error {
		_, err := claims.Create(ctx, claimCalled(name, part), metav1.CreateOptions{})
		return err
	})
	create(func() error { _, err := pods.Create(ctx, podCalled(name), metav1.CreateOptions{}); return err })
	// Most run before they are deleted; others are deleted whatever they do.
	limit, runs := time.Now().Add(hang), !waits
	isRunning := func() bool {
		object, there, _ := d.pods.GetByKey(namespace + "/" + name)
		return there && object.(*corev1.Pod).Status.Phase == corev1.PodRunning
	}
	for !runs && time.Now().Before(limit) {
		if runs = isRunning(); !runs {
			time.Sleep(retry / 2)
		}
	}
	if !runs {
		d.never.Add(1)
	}
	time.Sleep(patience)
	remove := func(delete func() error) {
		again(ctx, func() error {
			if err := delete(); !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		})
	}
	remove(func() error { return pods.Delete(ctx, name, metav1.DeleteOptions{}) })
	remove(func() error { return claims.Delete(ctx, name, metav1.DeleteOptions{}) })
	again(ctx, func() error {
		_, err := claims.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
}

func claimCalled(name string, part int) *resourceapi.ResourceClaim {
	devices := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "part", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: driver, Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"share": *resource.NewQuantity(int64(part), resource.DecimalSI)}}}}}}
	if *where == local {
		own := resourceapi.FullyQualifiedName(driver + "/node")
		here := resourceapi.DeviceRequest{Name: "here", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "here.aviary.dev"}}
		devices.Requests = append(devices.Requests, here)
		devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"here", "part"}, MatchAttribute: &own}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: devices}}
}

// onNodes is for pods that are for some nodes only; nil: they are for all.
func onNodes() *corev1.Affinity {
	if *where == "" || *where == local {
		return nil
	}
	var terms []corev1.NodeSelectorTerm
	for _, name := range strings.Split(*where, ",") {
		terms = append(terms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func podCalled(name string) *corev1.Pod {
	no, grace := false, int64(30)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace, Affinity: onNodes(),
		ResourceClaims: []corev1.PodResourceClaim{{Name: "part", ResourceClaimName: &name}},
		Containers: []corev1.Container{{Name: "none", Image: "none",
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "part"}}}}}}}
}
