//! What a program of the crate `openvino` does: devices, properties, a model from a file, inferences in every way.
use openvino::{Core, DeviceType, ElementType, PropertyKey, Shape, Tensor};

fn main() {
    let path = std::env::args().nth(1).expect("a model");
    let mut core = Core::new().expect("core");
    println!("{:?}", core.available_devices().expect("devices"));
    for (device, version) in core.versions("CPU").expect("versions") {
        println!("{device:?}: {} {}", version.build_number, version.description);
    }
    println!("{}", core.get_property(&DeviceType::CPU, &PropertyKey::DeviceCapabilities).expect("property"));
    println!("no model: {:?}", core.read_model_from_file("nowhere.xml", "").err());

    let model = core.read_model_from_file(&path, "").expect("read");
    println!(
        "{} inputs, {} outputs",
        model.get_inputs_len().expect("inputs"),
        model.get_outputs_len().expect("outputs")
    );
    let input = model.get_input_by_index(0).expect("input");
    println!(
        "{} {:?} {:?}",
        input.get_name().expect("name"),
        input.get_element_type(),
        input.get_shape().map(|s| s.get_dimensions().to_vec())
    );

    let mut compiled = core.compile_model(&model, DeviceType::CPU).expect("compile");
    let mut request = compiled.create_infer_request().expect("request");
    let shape = Shape::new(&[2, 3]).expect("shape");
    let mut tensor = Tensor::new(ElementType::F32, &shape).expect("tensor");
    for round in 0..5 {
        for (i, value) in tensor.get_data_mut::<f32>().expect("data").iter_mut().enumerate() {
            *value = (round * 10 + i) as f32;
        }
        request.set_tensor("x", &tensor).expect("set");
        if round % 2 == 0 {
            request.infer().expect("infer");
        } else {
            request.infer_async().expect("start");
            request.wait(60_000).expect("wait");
        }
        let output = request.get_output_tensor().expect("output");
        println!("{:?} {:?}", output.get_shape().map(|s| s.get_dimensions().to_vec()), output.get_data::<f32>());
    }
    let wrong = Tensor::new(ElementType::U8, &shape).expect("tensor");
    println!("another type: {:?}", request.set_tensor("x", &wrong).err());
}
