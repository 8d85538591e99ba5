def test_x(prepared, prepared_bag, encoder_path, dataset_path):
    from ramen_ray.data.validation import validate
    from ramen_ray.data.dataset import Dataset
    from transformers import AutoTokenizer
    d=Dataset(dataset_path)
    assert validate(d)==[]
    tok=AutoTokenizer.from_pretrained(encoder_path)
    for t in d.tables:
        rows=d.read(t)
        if 'text' in rows.column_names:
            print(t, rows['text'].to_pylist()[:5], len(set(rows['text'].to_pylist())), len(rows))
            assert all(tok.unk_token_id not in tok(x)['input_ids'] for x in rows['text'].to_pylist())
        else: print(t, len(rows), rows.slice(0,4).to_pylist())
    assert 0
